"""What vendors' errors mean: which pass, which do not, and how long to wait."""
