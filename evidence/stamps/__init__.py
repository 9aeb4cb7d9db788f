"""A benchmark of real pictures: photographs of Debian's tuxpaint-stamps-default, with the captions of their makers."""
