"""A fuzzer of every entry point. It is seeded, knows each format's structure, and can repeat every case.

    world          a small log, and valid files of every format made from it
    mutate, trees  changes to bytes, texts and JSON; to CBOR and records
    entrances      for each entry point, how a case is made from a random generator; these are in their own modules:
    records        the records of each topic of a log on Kafka, and answers
    conversations  what is sent to a log's owner, and to a worker's pages
    containers     Avro containers as any other writer could write them
    target         the process that runs cases, many in one: commands, and
    readers        what reads records, and
    served         the owner and the pages of conversations
    driver         runs cases in that process, and judges the result of each
    kafka          rounds on a real broker: hostile records in every topic, hostile requests to a worker
    shrink         makes a failing case smaller
    campaign       the command: `python -m refold_tests.fuzz.campaign`

A case is named ENTRANCE/NUMBER. Together with the seed, the name determines the case.
"""
