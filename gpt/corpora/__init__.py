"""Prepare corpora: find, download, read and encode them, into token files that `gpt.data` opens."""

from gpt.corpora.preparation import prepare

__all__ = ["prepare"]
