"""Make docs/photo.jpg, the picture at the top of the README, with three of the examples.

    pip install -e ".[examples]" && python docs/make_picture.py

The examples classify, detect and cut out the cat of examples/photos/chelsea.png, which is free (see
NOTICE); their pictures are put side by side.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PHOTO = "chelsea.png"
PICTURES = {"classify": "classified", "detect": "boxes", "segment": "cutout"}
PANEL = 400, 266  # width, height
GAP = 8


def on_checks(image: np.ndarray) -> np.ndarray:
    """Lay a picture with transparent parts, (h, w, 4), on a chessboard, (h, w, 3)."""
    rows, columns = np.indices(image.shape[:2]) // 12
    board = np.where((rows + columns) % 2, 230, 255)[..., None]
    alpha = image[..., 3:] / 255
    return np.rint(alpha * image[..., :3] + (1 - alpha) * board).astype(np.uint8)


def main() -> None:
    """Run the examples and write the picture."""
    panels = []
    with tempfile.TemporaryDirectory() as folder:
        for program, suffix in PICTURES.items():
            command = [f"examples/{program}.py", f"examples/photos/{PHOTO}", "--save", folder]
            subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
            path = Path(folder, f"{Path(PHOTO).stem}_{suffix}.png")
            image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            image = on_checks(image) if image.shape[2] == 4 else image
            image = cv2.resize(image, PANEL, interpolation=cv2.INTER_AREA)
            panels += [image, np.full((PANEL[1], GAP, 3), 255, np.uint8)]
    target = ROOT / "docs" / "photo.jpg"
    cv2.imwrite(str(target), np.hstack(panels[:-1]), [cv2.IMWRITE_JPEG_QUALITY, 85])


if __name__ == "__main__":
    main()
