"""Checks of the image and of the Compose files with a container engine: `make image-check`."""
