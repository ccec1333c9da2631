"""Attention over edges, of several kinds, whole or a block at a time.

- `kinds`: what each kind is and reads, the definition of them all, and the checks of inputs;
- `softmax`: what blocks leave in each row, and the draws that drop weights;
- `attend`: what others call, the op and its gradient;
- `reference` (plain torch), `numba` with `numba_batch`, `triton` with `triton_tiles`: the kernels.
  Each has one forward pass and one backward for all kinds; `ops.kernels` chooses between them.

A new kind needs

1. a member of `contract.Kind`, and in `kinds` a class that names its tensors by their shapes, and
   a case of the definition: checks, blocks, dropout and autograd follow from these names;
2. in `reference` a rule of three functions: scores, values, and where their gradients go;
3. in `numba` an argument beside `gat`, `gatv2` and `dot`, None for all other kinds; its branch of
   `numba_batch.scores`; in `_grad_columns` and `_grad_rows` its branch of what a score's gradient
   gives to sources, rows, shared tensors and edges;
4. in `triton` the same branches by `KIND`: `_score`, `_d_near`, and what `_grad_rows` adds up;
5. a line in `KINDS` of `tests/unit/ops/attention_cases.py`: every test of attention then runs for
   it, gradients included, on each implementation.
"""
