package refold.rebuild;

/** How a field folds; its name is the first one. limit: how many elements an append keeps. */
record Field(String name, String reducer, int limit) {}
