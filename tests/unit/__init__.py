"""Each function against its docstring; mirrors the package."""
