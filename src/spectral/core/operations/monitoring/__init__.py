"""Rules and a dashboard for the metrics, made of the catalogue and of the limits by which the doctor judges."""

from spectral.core.operations.monitoring.alerts import Alert, Severity, alerts, alerts_document, rule_groups
from spectral.core.operations.monitoring.dashboard import dashboard, dashboard_document

__all__ = ["Alert", "Severity", "alerts", "alerts_document", "dashboard", "dashboard_document", "rule_groups"]
