"""The dashboards as a page of our own, for places without Grafana."""

from glmforge_ops.monitor.page.server import make_app, serve

__all__ = ["make_app", "serve"]
