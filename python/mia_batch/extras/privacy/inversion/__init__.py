"""How much of a text its embedding gives back: a decoder is trained to invert an embedder."""
