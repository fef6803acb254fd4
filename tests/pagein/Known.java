// A class with some work: strings, and a function that is compiled while it runs.
import java.util.ArrayList;

public class Known {
    public static void main(String[] arguments) {
        ArrayList<String> names = new ArrayList<>();
        long sum = 0;
        for (int i = 0; i < 200000; i++) {
            names.add("name " + i);
            sum += names.get(i).hashCode();
        }
        System.out.println(sum);
    }
}
