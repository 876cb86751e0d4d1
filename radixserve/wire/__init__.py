"""What processes say to each other: messages, their encoding, and the sockets they travel on."""
