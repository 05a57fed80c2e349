"""Train a small GRU to read handwritten digits row by row, and export it with PyTorch's own ONNX exporter.

Writes `digits.onnx` (the model) and `heldout.npz` (digits it never saw) next to this file.
README.md says what it needs; `run.py` needs neither PyTorch nor scikit-learn.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from rich.progress import track
from sklearn.datasets import load_digits  # type: ignore[import-untyped, import-not-found, unused-ignore]
from sklearn.model_selection import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    train_test_split,
)
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
SEED = 0
SIDE = 8  # an image is SIDE rows of SIDE pixels
WHITEST = 16  # pixels are whole numbers from 0 to 16
EPOCHS = 80
BATCH = 64
LOGIT_TOLERANCE = 1e-5

Bytes = npt.NDArray[np.uint8]


class DigitReader(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two bidirectional GRU layers over the rows; the last states of both directions decide the digit."""

    def __init__(self, hidden: int = 32, dropout: float = 0.2) -> None:
        super().__init__()
        self.gru = nn.GRU(SIDE, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout)
        self.head = nn.Sequential(nn.LayerNorm(2 * hidden), nn.Dropout(dropout), nn.Linear(2 * hidden, 10))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits [batch, 10] of images [batch, 8, 8]."""
        _, last = self.gru(rows)
        logits: Tensor = self.head(torch.cat((last[-2], last[-1]), dim=1))
        return logits


def split_digits() -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return images and labels to learn from, then images and labels held out (a quarter, stratified)."""
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    learn, held, learn_labels, held_labels = train_test_split(
        images, labels, test_size=0.25, stratify=labels, random_state=SEED
    )
    return learn, learn_labels, held, held_labels


def to_rows(images: Bytes) -> Tensor:
    """Scale pixels to 0..1, as float32."""
    return torch.from_numpy(images.astype(np.float32) / WHITEST)


def jitter(rows: Tensor) -> Tensor:
    """Move half of the images by up to one pixel each way and add a little noise."""
    count = len(rows)
    shift = torch.randint(-1, 2, (count, 2)) * (torch.rand(count, 1) < 0.5)
    padded = nn.functional.pad(rows, (1, 1, 1, 1))
    places = torch.arange(SIDE) + 1
    y = (places + shift[:, :1])[:, :, None]
    x = (places + shift[:, 1:])[:, None, :]
    moved = padded[torch.arange(count)[:, None, None], y, x]
    return moved + 0.05 * torch.randn_like(moved)


def fit(rows: Tensor, labels: Tensor) -> DigitReader:
    """Train from scratch; the same seed gives the same model on the same machine and versions."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    model = DigitReader()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    steps = EPOCHS * -(-len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=8e-3, total_steps=steps)
    for _ in track(range(EPOCHS), description="training"):
        for chosen in torch.randperm(len(rows)).split(BATCH):
            logits = model(jitter(rows[chosen]))
            loss = nn.functional.cross_entropy(logits, labels[chosen], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()
    return model


def strip_notes(message: Any) -> None:
    """Remove doc strings and metadata from a protobuf message: they hold source paths of this machine."""
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for child in [value] if hasattr(value, "ListFields") else value:
                strip_notes(child)


def export(model: DigitReader) -> bytes:
    """Return the ONNX file: one file with its weights, any batch size, each GRU layer one GRU node."""
    # The default exporter (dynamo) writes a real GRU node for each layer: no need for the older one.
    program = torch.onnx.export(
        model,
        (torch.zeros(3, SIDE, SIDE),),
        input_names=["rows"],
        output_names=["logits"],
        dynamic_shapes={"rows": {0: torch.export.Dim("batch")}},
        dynamo=True,
        external_data=False,
    )
    if program is None:
        raise SystemExit("the exporter returned nothing")
    proto = program.model_proto
    strip_notes(proto)
    onnx.checker.check_model(proto, full_check=True)
    operators = [node.op_type for node in proto.graph.node]
    if operators.count("GRU") != model.gru.num_layers:
        raise SystemExit(f"the exporter took the GRU layers apart: {operators}")
    print(f"opset {proto.opset_import[0].version}: {' '.join(operators)}")
    file: bytes = proto.SerializeToString()
    return file


def difference_from_runtime(file: bytes, model: DigitReader, rows: Tensor) -> float:
    """Return the largest difference between PyTorch and ONNX Runtime over several batch sizes."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    worst = 0.0
    for size in (1, 7, len(rows)):
        with torch.no_grad():
            expected = model(rows[:size]).numpy()
        (found,) = session.run(["logits"], {"rows": rows[:size].numpy()})
        worst = max(worst, float(np.abs(found - expected).max()))
    return worst


def write(path: Path, content: bytes) -> None:
    """Write the whole file or none of it."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
    print(f"{path.name}: {len(content):,} bytes")


def main() -> int:
    """Train, measure, export, check, write."""
    learn, learn_labels, held, held_labels = split_digits()
    model = fit(to_rows(learn), torch.from_numpy(learn_labels.astype(np.int64)))
    with torch.no_grad():
        read = model(to_rows(held)).argmax(dim=1).numpy()
    right = int((read == held_labels).sum())
    print(f"held-out digits read right: {right} of {len(held)} ({right / len(held):.2%})")

    file = export(model)
    difference = difference_from_runtime(file, model, to_rows(held))
    print(f"largest difference between PyTorch and ONNX Runtime: {difference:.1e}")
    if not difference <= LOGIT_TOLERANCE:
        print(f"more than {LOGIT_TOLERANCE:.0e}: nothing was written", file=sys.stderr)
        return 1

    packed = io.BytesIO()
    np.savez_compressed(packed, images=held, labels=held_labels)
    write(HERE / "digits.onnx", file)
    write(HERE / "heldout.npz", packed.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
