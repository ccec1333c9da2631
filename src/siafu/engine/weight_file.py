"""weights.safetensors: the tensors of a model and text beside them, read without trust."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from siafu.checkpoint import first_difference
from siafu.errors import StoreError
from siafu.files import parse_json, read_regular, write_bytes_atomically
from siafu.graph import first_fault

_SUM = "sha256"
_MOST_HEADER_BYTES = 1 << 24
_MOST_BYTES = 1 << 40


class WeightFacts(BaseModel):
    """What the text beside the weights says; a run's own kind of data has its own."""

    model_config = ConfigDict(extra="ignore", frozen=True)


AnyFacts = TypeVar("AnyFacts", bound=WeightFacts)


def write_weights(module: nn.Module, facts: dict[str, str], file: Path) -> None:
    """Write the state of a module and facts about it, at once; a full disk is an OSError."""
    state = module.state_dict()
    # Copies, since safetensors refuses two names for one tensor, as tied weights have.
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in state.items()}
    # safetensors would write the file itself, and tell of a full disk in an error of its own.
    write_bytes_atomically(file, save(tensors, metadata=facts | {_SUM: _sum(tensors)}))


class Weights:
    """A file of weights, whole; numbers are looked at once it is known what they are for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            content = read_regular(file, most_bytes=_MOST_BYTES)
            self._text = _metadata(content)
            self.tensors: dict[str, Tensor] = load(content)
        except (OSError, ValueError, SafetensorError) as error:
            raise self._damaged(str(error)) from error
        except (KeyError, TypeError, RuntimeError) as error:  # dtypes that torch does not have
            raise self._damaged(f"a tensor can't be read: {error!r}") from error
        known = self._text.get(_SUM)
        if known is not None and _sum(self.tensors) != known:
            raise self._damaged("wrong checksum")

    def facts(self, model: type[AnyFacts]) -> AnyFacts:
        """Return the facts beside the weights."""
        try:
            return model.model_validate(self._text)
        except ValidationError as error:
            raise StoreError(
                "The weights do not say which data they are for.",
                seen=f"{self.file}: {first_fault(error)}",
                fix="train again with this version",
            ) from error

    def load_into(self, module: nn.Module) -> None:
        """Set the weights of a module, which must have exactly these tensors."""
        wanted = {name: _kind(tensor) for name, tensor in module.state_dict().items()}
        found = {name: _kind(tensor) for name, tensor in self.tensors.items()}
        if found != wanted:
            raise StoreError(
                "The weights do not fit the model.",
                seen=first_difference(found, wanted, f"in {self.file.name}", "in the model"),
                fix="infer with the model's code and the kind of data the run was trained with",
            )
        parameters = {name for name, _ in module.named_parameters()}
        for name, tensor in self.tensors.items():
            # A buffer of a user's model may well hold infinities, as a mask does.
            bad = ~torch.isfinite(tensor) if name in parameters else torch.isnan(tensor)
            if bool(bad.any()):
                raise self._damaged(f"{name} has a number that is NaN or infinite")
        module.load_state_dict(self.tensors)

    def _damaged(self, seen: str) -> StoreError:
        return StoreError(
            "The weights can't be read.",
            seen=f"{self.file}: {seen}",
            fix="copy the file again, or train again",
        )


def _metadata(content: bytes) -> dict[str, str]:
    """Return the text beside the tensors; the header is checked before it is parsed."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _MOST_HEADER_BYTES):
        raise ValueError(f"a header of {length} bytes in a file of {len(content)}")
    header = parse_json(content[8 : 8 + length])
    text = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(text, dict):
        raise ValueError("no header of safetensors")  # noqa: TRY004 - the file's fault, not a type
    return {str(key): str(value) for key, value in text.items()}


def _sum(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of names, shapes and contents."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {_kind(tensor)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
