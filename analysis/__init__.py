"""What a hidden state holds, what behaviours there are, and what drives them."""
