"""Calculations that are written or said."""
