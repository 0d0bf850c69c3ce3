"""Pure rules: model, units, reasons, request, fit, score, codec, token, admission. No I/O, no clock."""
