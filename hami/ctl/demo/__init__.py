"""`hami demo`: a tour of sharing on this machine, with our processes for real and a simulated cluster around them."""
