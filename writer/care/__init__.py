"""What people do with a pipeline and its table while it lives: hold it, take rows out of it, take a table over."""
