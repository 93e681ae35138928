"""Write the proof of the medium model that is part of op-dbus: run it when a test says so."""

import shutil

from opdbus import config
from opdbus.models import build, folder
from opdbus.models.level_table import LEVELS
from opdbus.models.weights import read_weights

if __name__ == "__main__":
    model = folder.load_model(LEVELS["medium"], config.load({"HOME": "/nonexistent"}))
    shutil.rmtree(build.PROOFS, ignore_errors=True)
    build.PROOFS.mkdir()
    path = build.shipped_proof(build.identify(model))
    build.write_proof(path, model.shape, read_weights(model.weights))
