"""Hydra configuration files, installed as `maskzoo.conf`."""
