"""Lightning modules and data modules, one folder a task."""
