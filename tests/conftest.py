"""Fixtures that several tests share."""

from __future__ import annotations

from fixtures_slurm import onebox

__all__ = ["onebox"]
