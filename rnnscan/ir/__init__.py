"""A step as data: programs of equations between values, traced from jaxprs. It knows no engine."""
