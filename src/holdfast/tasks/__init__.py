"""Tasks: functions as jobs, their arguments, options and outcomes."""
