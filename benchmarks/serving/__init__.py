"""Load for servers: what is sent, who sends it, who answers, and what is made of the times."""
