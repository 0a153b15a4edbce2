"""The campaign of random faults: a few trials of it, others every day."""

from __future__ import annotations

import subprocess
import sys
from datetime import date

import pytest

from tests.support.paths import PROJECT


@pytest.mark.slow
def test_random_faults_lose_nothing():
    words = ["benchmarks/faults.py", "--trials", "6", "--seed", str(date.today().toordinal())]
    campaign = subprocess.run([sys.executable, *words], cwd=PROJECT, capture_output=True, text=True)
    assert campaign.returncode == 0, campaign.stdout + campaign.stderr
    assert "| all |  | 6 |" in campaign.stdout
