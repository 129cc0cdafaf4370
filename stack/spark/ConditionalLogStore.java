package penstock.spark;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta commits on an S3 store, by conditional put: of two writers of one version the store refuses
 * the later one, whichever engine it belongs to.
 *
 * <p>Delta's own store for S3 keeps the order within one driver only: its commit silently replaces
 * one that another process made meanwhile. deltalake puts conditionally as well, so that both make
 * one protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#delta-log-entries (atomic
 * creation of the next entry).
 */
public final class ConditionalLogStore extends HadoopFileSystemLogStore {
  private static final String ONLY_IF_ABSENT = "fs.option.create.conditional.overwrite";

  public ConditionalLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    if (!overwrite && files.exists(path)) {
      throw new FileAlreadyExistsException(path.toString());
    }
    var builder = files.createFile(path).overwrite(true).recursive();
    if (!overwrite) {
      builder.must(ONLY_IF_ABSENT, true);
    }
    FSDataOutputStream opened = builder.build();
    try (var lines = new BufferedWriter(new OutputStreamWriter(opened, StandardCharsets.UTF_8))) {
      while (actions.hasNext()) {
        lines.write(actions.next());
        lines.write('\n');
      }
    } catch (IOException refused) {
      if (!overwrite && isConflict(refused)) {
        var taken = new FileAlreadyExistsException(path.toString());
        taken.initCause(refused);
        throw taken;
      }
      throw refused;
    }
  }

  /** The log lists files right after they were written: S3 is consistent. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false;
  }

  /** Says whether the store refused because the file is there: 412, or 409 while one is written. */
  private static boolean isConflict(Throwable refused) {
    for (Throwable cause = refused; cause != null; cause = cause.getCause()) {
      String said = String.valueOf(cause.getMessage());
      if (said.contains("Status Code: 412")
          || said.contains("Status Code: 409")
          || said.contains("PreconditionFailed")) {
        return true;
      }
    }
    return false;
  }
}
