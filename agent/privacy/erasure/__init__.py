"""Erases a person: the plan, the steps, the scan that proves it, the receipt."""
