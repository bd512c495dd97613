"""The viewer of runs: trajectories of an evaluation or of a training run as one HTML file, or served page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallelsearch.lazy import export

if TYPE_CHECKING:
    from parallelsearch.viewer.app import create_viewer_app as create_viewer_app
    from parallelsearch.viewer.app import run_viewer as run_viewer
    from parallelsearch.viewer.html import ExportReport as ExportReport
    from parallelsearch.viewer.html import export_html as export_html

export(
    __name__,
    {
        "app": ("create_viewer_app", "run_viewer"),
        "html": ("ExportReport", "export_html"),
    },
)
