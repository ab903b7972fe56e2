"""`glmforge monitor`: exporters, dashboards and rules."""
