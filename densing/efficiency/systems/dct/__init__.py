"""DCT, which sends gradient entries above a seldom renewed threshold; Top-K, which chooses anew in every step."""
