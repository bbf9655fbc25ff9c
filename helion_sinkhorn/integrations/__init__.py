"""What puts this package into models of others."""
