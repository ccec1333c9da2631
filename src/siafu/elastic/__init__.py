"""Tensor tasks as pure functions, pools of stateless workers that run them, and what they cost."""
