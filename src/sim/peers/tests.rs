//! Each algorithm on cases small enough to be worked out by hand.
