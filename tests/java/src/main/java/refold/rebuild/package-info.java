/**
 * Rebuilds a cut of a log on Kafka from docs/FORMAT.md alone: no code of refold's, a plain consumer, and Avro.
 *
 * <p>{@link refold.rebuild.RebuildCut} is the program; {@link refold.rebuild.PartitionRebuild} follows the page's steps.
 * Values are trees of null, Boolean, BigInteger, Double, String, {@link refold.rebuild.Bytes}, List and Map.
 */
package refold.rebuild;
