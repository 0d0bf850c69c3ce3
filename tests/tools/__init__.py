"""Instruments that judge the product from outside: they import nothing from hami."""
