"""Questions about stock prices."""
