"""Owns `wallfinder doctor`: what would spoil a sweep here. `examine` looks, `checks` judges (pure), `show` tells."""
