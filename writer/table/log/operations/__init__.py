"""Operations that one log entry can carry, each a value that validates itself and says all about its entry."""
