-- Puts held jobs back where their limit lets them pass, for up to `most` reasons after one (see the function).
SELECT reached, moved, next_in FROM {schema}.review_held(%(after)s, %(most)s)
