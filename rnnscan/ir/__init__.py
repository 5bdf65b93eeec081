"""A step as data: programs of equations between values, made from jaxprs. It knows no engine."""
