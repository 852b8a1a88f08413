"""What people look at: single conversations token by token, and the HTML page."""
