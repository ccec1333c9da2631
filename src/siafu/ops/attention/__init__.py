"""Attention over edges, of several kinds, whole or a block at a time.

`attend` is what others call, `kinds` says what each kind is, `softmax` holds what blocks leave.
"""
