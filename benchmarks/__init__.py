"""Questions about speed and memory, one command each; a wrong answer reports no time."""
