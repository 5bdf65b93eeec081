"""What running an equation costs, and the choices of each platform."""
