"""Dashboards as code: the panels, and Grafana's JSON made of them."""
