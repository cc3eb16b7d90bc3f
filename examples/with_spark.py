"""Classify JPEG files in a Parquet data set on Spark: spark-submit examples/with_spark.py IN OUT.

IN is a folder of Parquet files with the column `image` (bytes); OUT gets the other columns, and the
class of each.  Every machine needs kuiper, and the model under the same path.
"""

import sys

from pyspark.sql import SparkSession

from kuiper.batch import Classify

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = sys.argv[1:]
    spark = (
        SparkSession.builder.appName("classify")
        # Rows in one batch: the default of 10,000 photos would fill the memory.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 64)
        .getOrCreate()
    )
    photos = spark.read.parquet(source)
    stage = Classify("mobilenet_v2")
    # A Python worker runs one task after another, and keeps the model.
    classes = photos.mapInArrow(stage.arrow, stage.ddl(photos.schema))
    classes.write.mode("overwrite").parquet(out)
    spark.stop()
