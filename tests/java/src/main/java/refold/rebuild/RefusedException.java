package refold.rebuild;

/** A cut that this program does not rebuild, and why. */
final class RefusedException extends RuntimeException {
  private static final long serialVersionUID = 1;

  RefusedException(String message) {
    super(message);
  }
}
