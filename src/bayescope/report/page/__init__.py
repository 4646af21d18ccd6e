"""How a report looks: its words, its figures, and the one HTML file that holds them."""
