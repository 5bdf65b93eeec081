"""What many parts of the package share: messages, arguments, dtypes, pytrees, wrappers of a step."""
