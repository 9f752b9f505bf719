"""What touches the world, with fakes only at its outermost edge."""
